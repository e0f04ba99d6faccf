//! What the page says, part by part. What its commands print is not here: it is what they print.

use super::DRAINED;
use super::page::{Look, Part, Title};

/// Of a command that finds all in order.
const fn well(command: &'static str, most: usize) -> Look {
    Look {
        command,
        status: 0,
        most,
    }
}

/// Of a command that finds something that is not, and says so by its exit status.
const fn wrong(command: &'static str, most: usize) -> Look {
    Look {
        command,
        status: 1,
        most,
    }
}

/// Of a command that cannot tell, and says so by its exit status.
const fn unsure(command: &'static str, most: usize) -> Look {
    Look {
        command,
        status: 2,
        most,
    }
}

pub(super) const TITLE: Title = Title {
    title: "A tour: what kube-proxy does for each Service, as it says itself",
    text: "This page is made by `make tour > docs/tour.md`, in IPVS mode. What stands below a `$` is what that command printed on a node of a small world of
network namespaces, while a daemon served there and clients asked; where it is cut, it says so, and log lines (standard error) are left out.

`node1` (172.36.0.11) has the daemon, the pod `web-1` and the pod `client` (10.10.1.9), which asks; `node2` (172.36.0.12) has `web-2` and `web-3`.
Outside are the hosts `outside` (172.36.0.9) and `stranger` (172.36.0.77). The Services are in the namespace `shop`:
[manifests/examples/tour](../manifests/examples/tour).

All commands are subcommands of `kube-proxy`, and only read. `status`, `services`, `explain` and `top` ask the daemon on the node; in a cluster
`kubectl -n kube-system exec POD -- kube-proxy status`. `check`, `plan` and `diff` ask the kernel and the cluster's objects, not the daemon, and take
its flags. Here these are:",
};

pub(super) const SERVICES: &[Part] = &[
    Part {
        title: "How the node stands",
        text: "The first command on any node: a line for each IP family, and below whatever is not in order. Here all is, so that nothing is there.",
        looks: &[
            well("kube-proxy status", 30),
            well("kube-proxy status -o wide", 16),
        ],
        asks: &[],
        after: "`-o wide` has all limits, and which parts of the kernel are found; without it, only those that are near or missing are told. `-o json` and
`-o yaml` are in the words of [api.md](api.md).",
    },
    Part {
        title: "All Services",
        text: "ENDPOINTS are *used/ready/all*: those that traffic on this node is sent to, those that are ready, all.",
        looks: &[well("kube-proxy services", 40)],
        asks: &[],
        after: "`headless` (no cluster IP) and `alias` (`ExternalName`) are not there: these are names in DNS, and no kube-proxy does anything for them. Where one of
them does not answer, look at DNS and at the pod.",
    },
    Part {
        title: "ClusterIP",
        text: "A virtual server, with a destination for each endpoint. IN is under which traffic policy an endpoint is used, and WHY is the reason. Counters are
the kernel's; IPVS adds up every two seconds.",
        looks: &[
            well("kube-proxy services shop/cluster -o wide", 40),
            well("kube-proxy explain shop/cluster --from 10.10.1.9", 60),
        ],
        asks: &[("client", "10.200.0.1:80", "answers")],
        after: "`explain` follows the first packet of a connection, and the answer to it, through the rules, sets and virtual servers that the kernel holds now; `←` says
which object or flag a step comes from.",
    },
    Part {
        title: "ClusterIP, from the node, and from a pod that is an endpoint",
        text: "`--from` takes `pod`, `node`, `external`, or an address. `pod` is one that is known on this node, here an endpoint, which may reach itself. The node itself is
masqueraded, since its source would be the service address.",
        looks: &[
            well("kube-proxy explain shop/cluster --from node", 12),
            well("kube-proxy explain shop/cluster --from pod", 4),
        ],
        asks: &[("node1", "10.200.0.1:80", "answers")],
        after: "",
    },
    Part {
        title: "NodePort",
        text: "A virtual server more at each address of the node that NodePorts are served at.",
        looks: &[
            well("kube-proxy services shop/node", 40),
            well("kube-proxy explain 172.36.0.11:30002 --from external", 24),
        ],
        asks: &[("outside", "172.36.0.11:30002", "answers")],
        after: "Under the policy `Cluster`, who comes from outside is masqueraded, so that answers come back by way of this node: the pod sees the node.",
    },
    Part {
        title: "LoadBalancer, with source ranges",
        text: "`loadBalancerSourceRanges` of this one has 172.36.0.0/28, so `outside`, and not `stranger`.",
        looks: &[
            well("kube-proxy services shop/balanced", 40),
            well("kube-proxy explain 172.36.0.103:80 --from 172.36.0.9", 3),
            wrong("kube-proxy explain 172.36.0.103:80 --from 172.36.0.77", 40),
        ],
        asks: &[
            ("outside", "172.36.0.103:80", "answers"),
            ("stranger", "172.36.0.103:80", "timed out"),
        ],
        after: "",
    },
    Part {
        title: "External IPs",
        text: "An address that somebody else leads to the node. kube-proxy serves it, and does not make it come here.",
        looks: &[
            well("kube-proxy services shop/external", 40),
            well("kube-proxy explain 172.36.0.104:80 --from 172.36.0.9", 20),
        ],
        asks: &[("outside", "172.36.0.104:80", "answers")],
        after: "",
    },
    Part {
        title: "externalTrafficPolicy: Local",
        text: "What comes from outside goes to pods of this node alone, which see the client's own address.",
        looks: &[
            well("kube-proxy services shop/local", 40),
            well("kube-proxy explain 172.36.0.11:30005 --from 172.36.0.9", 24),
        ],
        asks: &[("outside", "172.36.0.11:30005", "answers")],
        after: "",
    },
    Part {
        title: "externalTrafficPolicy: Local, and no pod here",
        text: "In IPVS mode the endpoints of other nodes stand in, as upstream, for the sake of clients inside the cluster (C in
[packet-matrix.md](packet-matrix.md)). But this node masquerades nothing under that policy, so that the pod's answer goes straight to the client, who has
asked another address and does not take it, unless it comes back by way of this node. That is not to be seen here: `explain` is not sure, and ends with 2.
A load balancer that looks at the health-check node port does not send here at all.",
        looks: &[
            well("kube-proxy services shop/remote", 40),
            unsure("kube-proxy explain 172.36.0.11:30010 --from 172.36.0.9", 20),
        ],
        asks: &[("outside", "172.36.0.11:30010", "timed out"), ("client", "10.200.0.10:80", "answers")],
        after: "",
    },
    Part {
        title: "internalTrafficPolicy: Local, and no pod here",
        text: "Of clients on node1 no pod may be asked, as none is here: they are refused at once.",
        looks: &[
            well("kube-proxy services shop/elsewhere", 40),
            wrong("kube-proxy explain shop/elsewhere --from 10.10.1.9", 40),
        ],
        asks: &[("client", "10.200.0.6:80", "connection refused")],
        after: "",
    },
    Part {
        title: "Session affinity",
        text: "`sessionAffinity: ClientIP` makes a virtual server persistent: a client stays with an endpoint until 600 s after its last connection.",
        looks: &[
            well("kube-proxy services shop/sticky -o wide", 40),
            well("kube-proxy explain shop/sticky --from 10.10.1.9", 16),
        ],
        asks: &[],
        after: "All connections that the endpoint with CONNS has are those of `client`. The shares in `explain` are those of a client who has not asked before.",
    },
    Part {
        title: "No endpoint is ready",
        text: "Two pods, and none of them ready. Who asks is refused at once.",
        looks: &[
            well("kube-proxy services shop/unready", 40),
            wrong("kube-proxy explain shop/unready --from 10.10.1.9", 40),
        ],
        asks: &[("client", "10.200.0.8:80", "connection refused")],
        after: "",
    },
];

pub(super) const DRAINS: Part = Part {
    title: "An endpoint that drains",
    text: "`web-3` has just left the EndpointSlice of `drained`, while `client` has a connection open to it: this one goes on, new ones go to others. The
virtual server keeps it with weight 0 until its last connection has ended.",
    looks: &[
        well("kube-proxy status", 30),
        well("kube-proxy services shop/drained -o wide", 40),
        well("kube-proxy explain shop/drained --from 10.10.1.9", 16),
    ],
    asks: &[("client", DRAINED, "answers")],
    after: "`services` lists it as `draining`, behind those of the EndpointSlices, as long as it drains; `status` and `top` count it.
Closed connections count for up to two minutes more, until IPVS forgets them.",
};

pub(super) const BUSIEST: Part = Part {
    title: "The busiest",
    text: "`kube-proxy top` is live on a terminal. With `--once`, or where there is none, it looks twice, prints one table and ends.",
    looks: &[well("kube-proxy top --once", 22)],
    asks: &[],
    after: "`status`, `services`, `top` and `explain` are also a page: `kubectl -n kube-system port-forward POD 10249`, then <http://localhost:10249/ui/>.",
};

pub(super) const IN_ORDER: Part = Part {
    title: "Is the kernel as it should be",
    text: "`diff` prints nothing and ends with 0 where it is. `check` says what a start with these flags would change, and what on this node is in its way.",
    looks: &[
        well("kube-proxy diff $FLAGS", 20),
        well("kube-proxy check $FLAGS", 40),
    ],
    asks: &[],
    after: "",
};

pub(super) const CHANGED: Part = Part {
    title: "Somebody changes what is programmed",
    text: "`ipvsadm -d -t 10.200.0.1:80 -r 10.10.2.2:8080` has just taken a destination away:",
    looks: &[wrong("kube-proxy diff $FLAGS", 20)],
    asks: &[],
    after: "",
};

pub(super) const REPAIRED: Part = Part {
    title: "It is made right again, and told",
    text: "The check of the sync period (30 s) has found it, and put it back.",
    looks: &[
        well("kube-proxy status", 30),
        well("kube-proxy diff $FLAGS", 20),
    ],
    asks: &[],
    after: "",
};

pub(super) const PLANNED: Part = Part {
    title: "What a change would do",
    text: "`/tmp/next` has the same manifests, but `cluster` with port 81 instead of 80. (Of two `--manifests` the last counts.)",
    looks: &[wrong("kube-proxy plan $FLAGS --manifests=/tmp/next", 40)],
    asks: &[],
    after: "Without `--manifests` the cluster's objects count, so that `plan` on a node of upstream's kube-proxy says what a change to this one would write.

What to do where something is wrong: [troubleshooting.md](troubleshooting.md).",
};
