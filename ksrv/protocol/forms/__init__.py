"""Bodies that are forms or files, as curl and browsers send them."""
