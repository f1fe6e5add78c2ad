"""The page at `/`: the models that are served, and a form to try each of them."""
