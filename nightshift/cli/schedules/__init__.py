"""`nightshift schedules`: plans from files, and the schedules that the server has."""
