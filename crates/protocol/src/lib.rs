//! RESP scanning and encoding, the command table, hash slots.
