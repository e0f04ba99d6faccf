//! ipset over nfnetlink: many entries in one message.
