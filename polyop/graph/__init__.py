"""Graph -> Plan: operators called on symbolic inputs, merged and run."""
