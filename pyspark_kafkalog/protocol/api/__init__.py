"""One file per API: this folder is the support table."""
