"""What `nightshift doctor` looks at, each part for real, and its support bundle."""
