"""Loads that resume: a plan written down, a receipt from each task, one commit record that publishes both."""
