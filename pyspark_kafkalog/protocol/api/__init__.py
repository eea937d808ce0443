"""One file per API and its versions: this folder is the support table."""
