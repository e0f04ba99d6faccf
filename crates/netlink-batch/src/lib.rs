//! Netlink transport: many messages in one send, errors by sequence number.
