"""The version, in one place; the package metadata is made from it."""

VERSION = "0.1.0"
