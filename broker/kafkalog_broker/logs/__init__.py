"""All logs of a broker: topics, their records, start-up."""
