//! Foreign virtual servers: virtual servers for which no evidence shows that a kube-proxy created
//! them.
//!
//! If a Service wants the key of a foreign virtual server:
//!
//! - The foreign virtual server stays, and the kernel refuses the Service's virtual server. The
//!   proxy retries in a plan of its own, with back-off.
//! - The Service gets the key once another program removes the foreign virtual server.
//! - Until then, the proxy creates no evidence that the foreign virtual server is its own. No set
//!   contains the virtual server's address and port, and its address is not bound to `kube-ipvs0`.

use hashbrown::{HashMap, HashSet};

use crate::server::{VirtualServer, VirtualServerKey};

/// Virtual servers that belong to other programs, in one IP family.
#[derive(Debug, Default)]
pub(crate) struct ForeignServers {
    servers: HashMap<VirtualServerKey, VirtualServer>,
    /// True once all evidence of ownership has been read.
    is_judged: bool,
    /// Virtual servers that other programs added or removed since the Services at their addresses
    /// were last compiled.
    changed: HashSet<VirtualServerKey>,
    /// Virtual servers that the log has already reported.
    told: HashSet<VirtualServerKey>,
    /// True in a preview of a start. In a preview every write succeeds, so the preview must not
    /// write at the key of a foreign virtual server.
    is_foreseeing: bool,
}

impl ForeignServers {
    /// Returns true if a virtual server has this key, and no evidence so far shows that a
    /// kube-proxy created the virtual server.
    pub(crate) fn stands_at(&self, key: &VirtualServerKey) -> bool {
        self.servers.contains_key(key)
    }

    /// Returns true if another program's virtual server has this key, after all evidence was read.
    pub(crate) fn is_known_at(&self, key: &VirtualServerKey) -> bool {
        self.is_judged && self.servers.contains_key(key)
    }

    /// Returns true if the list contains no virtual servers of other programs.
    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Returns all virtual servers of other programs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&VirtualServerKey, &VirtualServer)> {
        self.servers.iter()
    }

    /// Returns true if the proxy may try to create a virtual server with this key: either no
    /// foreign virtual server has the key, or another program may have removed it in the meantime.
    pub(crate) fn may_be_tried(&self, key: &VirtualServerKey) -> bool {
        !self.stands_at(key) || (self.is_judged && !self.is_foreseeing)
    }

    /// Prevents, for a preview, attempts to create virtual servers with other programs' keys.
    pub(crate) fn foresee(&mut self) {
        self.is_foreseeing = true;
    }

    /// Records that all evidence of ownership has been read.
    pub(crate) fn mark_judged(&mut self) {
        if !self.is_judged {
            self.is_judged = true;
            self.changed.extend(self.servers.keys().copied());
        }
    }

    /// Replaces the list of other programs' virtual servers with `found`.
    pub(crate) fn found(
        &mut self,
        found: impl IntoIterator<Item = (VirtualServerKey, VirtualServer)>,
    ) {
        let before = std::mem::take(&mut self.servers);
        self.servers.extend(found);
        if self.is_judged {
            let of = |one: &HashMap<VirtualServerKey, _>, other: &HashMap<VirtualServerKey, _>| {
                let only = one.keys().filter(|key| !other.contains_key(*key));
                only.copied().collect::<Vec<_>>()
            };
            self.changed.extend(of(&before, &self.servers));
            self.changed.extend(of(&self.servers, &before));
        }
        self.told.retain(|key| self.servers.contains_key(key));
    }

    /// Removes a virtual server from the list, because it no longer exists or does not belong to
    /// another program.
    pub(crate) fn remove(&mut self, key: &VirtualServerKey) -> Option<VirtualServer> {
        let removed = self.servers.remove(key)?;
        self.told.remove(key);
        if self.is_judged {
            self.changed.insert(*key);
        }
        Some(removed)
    }

    /// Returns true if Services must be recompiled, because foreign virtual servers appeared or
    /// disappeared.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Removes and returns the foreign virtual servers that appeared or disappeared since the last
    /// call.
    pub(crate) fn take_changed(&mut self) -> HashSet<VirtualServerKey> {
        std::mem::take(&mut self.changed)
    }

    /// Returns true if the log has not reported this virtual server yet, and marks it as reported.
    pub(crate) fn tell(&mut self, key: &VirtualServerKey) -> bool {
        self.told.insert(*key)
    }
}
