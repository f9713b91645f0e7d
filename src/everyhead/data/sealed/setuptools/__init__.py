"""Stands in for setuptools while pip downloads a source archive, so that nothing in it is run.

pip asks the build backend for a name and a version even when it only downloads. The real one would
run the archive's setup.py to find out; this one says what it was told (PEP 517).
"""
