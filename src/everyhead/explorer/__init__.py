"""The page that shows every head, as one file or served: built from arrays or from a trace."""
