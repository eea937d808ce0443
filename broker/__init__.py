"""The bundled broker."""
