"""How replies look to a person. Every name and text that comes from a sandbox is escaped before it is printed."""
