//! Foreign virtual servers, for which no evidence shows that a kube-proxy created them.
//!
//! If a Service wants the address and port (the key) of a foreign virtual server:
//!
//! - The foreign virtual server stays, and the kernel refuses the Service's virtual server. The
//!   proxy retries in a separate plan, with back-off.
//! - The Service gets the key once another program removes the foreign virtual server.
//! - Until then, the proxy creates nothing that would mark the foreign virtual server as its own:
//!   no set member with its address and port, and no address on `kube-ipvs0`.

use hashbrown::{HashMap, HashSet};

use crate::server::{VirtualServer, VirtualServerKey};

/// Virtual servers of other programs, in one IP family.
#[derive(Debug, Default)]
pub(crate) struct ForeignServers {
    servers: HashMap<VirtualServerKey, VirtualServer>,
    /// True once the proxy has read all evidence of who created the virtual servers.
    is_judged: bool,
    /// Keys at which other programs added or removed a virtual server, and whose Services still
    /// must be recompiled.
    changed: HashSet<VirtualServerKey>,
    /// Virtual servers about which the log has already warned.
    told: HashSet<VirtualServerKey>,
    /// True in a preview of a start, in which every write succeeds. So the preview must not write
    /// at the key of a foreign virtual server.
    is_foreseeing: bool,
}

impl ForeignServers {
    /// Returns true if a virtual server has this key, and no evidence read so far shows that a
    /// kube-proxy created it.
    pub(crate) fn stands_at(&self, key: &VirtualServerKey) -> bool {
        self.servers.contains_key(key)
    }

    /// Returns true if another program's virtual server has this key. Returns false until all
    /// evidence of ownership is read.
    pub(crate) fn is_known_at(&self, key: &VirtualServerKey) -> bool {
        self.is_judged && self.servers.contains_key(key)
    }

    /// Returns true if the proxy knows no virtual servers of other programs.
    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Returns all virtual servers of other programs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&VirtualServerKey, &VirtualServer)> {
        self.servers.iter()
    }

    /// Returns true if the proxy may try to create a virtual server with this key: no foreign
    /// virtual server has the key, or another program may have removed it since.
    pub(crate) fn may_be_tried(&self, key: &VirtualServerKey) -> bool {
        !self.stands_at(key) || (self.is_judged && !self.is_foreseeing)
    }

    /// Makes a preview skip virtual servers whose keys other programs use.
    pub(crate) fn foresee(&mut self) {
        self.is_foreseeing = true;
    }

    /// Records that the proxy has read all evidence of who created the virtual servers.
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

    /// Removes a virtual server from the list of foreign ones, because it is gone or turned out to
    /// be ours.
    pub(crate) fn remove(&mut self, key: &VirtualServerKey) -> Option<VirtualServer> {
        let removed = self.servers.remove(key)?;
        self.told.remove(key);
        if self.is_judged {
            self.changed.insert(*key);
        }
        Some(removed)
    }

    /// Returns true if foreign virtual servers have appeared or disappeared, so that Services must
    /// be recompiled.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Removes and returns the keys at which foreign virtual servers appeared or disappeared since
    /// the last call.
    pub(crate) fn take_changed(&mut self) -> HashSet<VirtualServerKey> {
        std::mem::take(&mut self.changed)
    }

    /// Marks this virtual server as logged. Returns true if the log has not warned about it before.
    pub(crate) fn tell(&mut self, key: &VirtualServerKey) -> bool {
        self.told.insert(*key)
    }
}
