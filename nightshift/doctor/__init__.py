"""The checks of `nightshift doctor`: each tries a part of the installation for real."""
