"""Wrong variants of minispec's parts, each a mistake that is easy to make. The suite must catch every one."""
