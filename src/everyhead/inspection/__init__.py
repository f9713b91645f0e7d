"""Looking inside a model: what each attention looked at, and pictures of it."""
