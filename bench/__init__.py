"""Side-by-side measurements against peers: ratios in one run, never absolute claims."""
