"""A folder for PYTHONPATH: what stands in for setuptools while pip downloads a source archive."""
