"""Access: who may reach an app from outside, and a record of what they changed. It knows no protocol."""
