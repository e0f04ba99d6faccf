//! What the page says, part by part. What its commands print is not here: it is what they print.

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

pub(super) const TITLE: Title = Title {
    title: "A tour: what kube-proxy does for each Service, as it says itself",
    text: "Made by `make tour > docs/tour.md`, in IPVS mode: each output is what the command printed, on a node of a small world of network \
namespaces, while a daemon served there and clients asked. What is cut says so.

node1 (172.36.0.11) has the daemon, the pod `web-1` and the pod `client` (10.10.1.9) that asks; node2 (172.36.0.12) has `web-2` and `web-3`; a host
`outside` is 172.36.0.9. The Services are those of [manifests/examples/tour](../manifests/examples/tour), in the namespace `shop`.

All commands are subcommands of `kube-proxy`, and only read. `status`, `services`, `explain` and `top` ask the daemon of the node; in a cluster:
`kubectl -n kube-system exec POD -- kube-proxy status`. `check`, `plan` and `diff` ask no daemon but the kernel and the cluster's objects, and take the
daemon's own flags, here:",
};

pub(super) const SERVICES: &[Part] = &[
    Part {
        title: "How the node stands",
        text: "The first command on any node. One line for each IP family; below it whatever is not in order, and nothing if all is.",
        looks: &[
            well("kube-proxy status", 30),
            well("kube-proxy status -o wide", 40),
        ],
        after: "`-o wide` also lists the limits that are far, and what the kernel has of what the mode uses. `-o json` and `-o yaml` have all of it, \
in the words of [api.md](api.md).",
    },
    Part {
        title: "All Services",
        text: "ENDPOINTS are used/ready/all: to how many traffic on this node is sent, how many are ready, how many there are.",
        looks: &[well("kube-proxy services", 40)],
        after: "`headless` and `alias` are not there: a Service without a cluster IP and an `ExternalName` are names in DNS, and kube-proxy does nothing for \
them, as upstream. If one of those does not answer, look at DNS.",
    },
    Part {
        title: "ClusterIP",
        text: "One virtual server, with an endpoint for each pod. IN is whether traffic is sent to it, and WHY the reason. The counters are the kernel's own.",
        looks: &[
            well("kube-proxy services shop/cluster -o wide", 40),
            well("kube-proxy explain shop/cluster --from pod", 60),
            well("kube-proxy explain shop/cluster --from node", 60),
        ],
        after: "`explain` walks the rules, sets and virtual servers that the kernel holds now, and says what of Kubernetes each comes from. From a pod the \
client's address is kept; the node itself is masqueraded, as its source would be the service address.",
    },
    Part {
        title: "NodePort",
        text: "The same, and a virtual server at each address of the node.",
        looks: &[
            well("kube-proxy services shop/node", 40),
            well("kube-proxy explain shop/node --from external", 60),
        ],
        after: "Under the policy `Cluster` a client from outside is masqueraded: the endpoint sees the node. `externalTrafficPolicy: Local` keeps the client's address \
(below).",
    },
    Part {
        title: "LoadBalancer, with source ranges",
        text: "The load balancer's address is served on the node; `loadBalancerSourceRanges` lets in 172.36.0.0/28 alone. 172.36.0.9 is in it, 172.36.0.77 is not.",
        looks: &[
            well("kube-proxy services shop/balanced", 40),
            well("kube-proxy explain 172.36.0.103:80 --from 172.36.0.9", 60),
            wrong("kube-proxy explain 172.36.0.103:80 --from 172.36.0.77", 60),
        ],
        after: "The verdict of the second says which rule drops it, and which field that comes from. Such a client sees a timeout.",
    },
    Part {
        title: "External IPs",
        text: "An address that somebody else leads to the node.",
        looks: &[
            well("kube-proxy services shop/external", 40),
            well("kube-proxy explain 172.36.0.104:80 --from external", 60),
        ],
        after: "",
    },
    Part {
        title: "externalTrafficPolicy: Local",
        text: "From outside only pods of this node are asked, and they see the client. From pods, the policy within the cluster counts.",
        looks: &[
            well("kube-proxy services shop/local", 40),
            well("kube-proxy explain shop/local --from external", 60),
        ],
        after: "",
    },
    Part {
        title: "Policy Local, and no pod here",
        text: "Both policies are `Local`, and node1 has no pod of this Service: it works on node2, and fails here.",
        looks: &[
            well("kube-proxy services shop/elsewhere", 40),
            wrong("kube-proxy explain shop/elsewhere", 80),
        ],
        after: "",
    },
    Part {
        title: "Session affinity",
        text: "`sessionAffinity: ClientIP` makes a virtual server persistent: one client stays with one endpoint for 600 s.",
        looks: &[
            well("kube-proxy services shop/sticky -o wide", 40),
            well("kube-proxy explain shop/sticky --from 10.10.1.9", 60),
        ],
        after: "",
    },
    Part {
        title: "No endpoint is ready",
        text: "Two pods, none of them ready. Whoever asks is refused at once, and does not wait.",
        looks: &[
            well("kube-proxy services shop/unready", 40),
            wrong("kube-proxy explain shop/unready --from pod", 60),
        ],
        after: "",
    },
];

pub(super) const DRAINS: Part = Part {
    title: "An endpoint that drains",
    text: "`web-3` has just left the EndpointSlice of `drained`, while `client` has a connection open to it. It gets no new ones (weight 0), and goes when that one ends.",
    looks: &[
        well("kube-proxy status", 30),
        well("kube-proxy services shop/drained -o wide", 40),
        well("kube-proxy explain shop/drained --from pod", 60),
    ],
    after: "",
};

pub(super) const BUSIEST: Part = Part {
    title: "The busiest",
    text: "`kube-proxy top` is live on a terminal; with `--once`, or where there is no terminal, it looks twice and prints one table.",
    looks: &[well("kube-proxy top --once", 40)],
    after: "The same, with drawings, is a page: `kubectl -n kube-system port-forward POD 10249`, then http://localhost:10249/ui/.",
};

pub(super) const IN_ORDER: Part = Part {
    title: "Is the kernel as it should be",
    text: "`diff` prints nothing and ends with 0 where it is. `check` is the preflight of a start with these flags: what would change, and what on the node is in the way.",
    looks: &[
        well("kube-proxy diff $FLAGS", 20),
        well("kube-proxy check $FLAGS", 40),
    ],
    after: "The ports that are taken are the daemon's that serves here.",
};

pub(super) const CHANGED: Part = Part {
    title: "Somebody changes what is programmed",
    text: "Here `ipvsadm -d -t 10.200.0.1:80 -r 10.10.2.2:8080` has taken an endpoint away behind the daemon's back.",
    looks: &[wrong("kube-proxy diff $FLAGS", 20)],
    after: "",
};

pub(super) const REPAIRED: Part = Part {
    title: "It is made right, and told",
    text: "The check of each sync period (30 s) has found it and put it back.",
    looks: &[
        well("kube-proxy status", 30),
        well("kube-proxy diff $FLAGS", 20),
    ],
    after: "",
};

pub(super) const PLANNED: Part = Part {
    title: "What a change would do",
    text: "`/tmp/next` has the same manifests, but `cluster` serves at port 81 instead of 80. `plan` counts the writes, and lists them in the order in which they are made. \
Of two `--manifests` the last counts.",
    looks: &[wrong("kube-proxy plan $FLAGS --manifests=/tmp/next", 40)],
    after: "Without `--manifests` it is the cluster's objects that count. `kube-proxy --dry-run` is the same.",
};
