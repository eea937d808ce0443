"""Properties files and the settings they hold."""
