"""Tests of single modules; the layout follows the packages."""
