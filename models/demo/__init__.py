"""The demo family: package data, see README.md beside the files."""
