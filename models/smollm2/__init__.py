"""The demo family: package data, see README.md in this folder."""
