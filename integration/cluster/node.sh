# Starts containerd and then the kubelet of one node, in the node's network and UTS namespaces. Both
# programs share one mount namespace, so that containers see the volumes that the kubelet mounts.
#   sh node.sh NAME STATE RUN LOGS IP KUBERNETES ARCHIVE...
set -eu
name=$1 state=$2 run=$3 logs=$4 ip=$5 kubernetes=$6
shift 6
mount --make-rshared /
# Pods in the host's network report this name as their host name.
echo "$name" >/proc/sys/kernel/hostname
# Mounts cgroup2 again, because `ip netns exec` has mounted a new sysfs over /sys.
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Adds a CPU clock speed, without which the kubelet does not start. User Mode Linux reports none.
if ! grep -q '^cpu MHz' /proc/cpuinfo; then
  sed '/^processor/a cpu MHz\t\t: 1000.000' /proc/cpuinfo >"$state/cpuinfo"
  mount --bind "$state/cpuinfo" /proc/cpuinfo
fi
mkdir -p "$state/kubelet" "$logs/pods/$name" "$run"
main=$$
# Runs a program of the node in the background. If the program ends, prints the last lines of its
# log, and ends this script.
keep() { # name, command...
  program=$1
  shift
  (
    status=0
    "$@" >"$logs/$name-$program.log" 2>&1 || status=$?
    echo "$program of $name has ended with status $status; the end of $name-$program.log:" >&2
    tail -n 15 "$logs/$name-$program.log" >&2
    kill "$main"
  ) &
}
keep containerd containerd -c "$state/containerd.toml"
socket=$run/containerd.sock
tries=0
until ctr -a "$socket" version >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ $tries -lt 100 ] || { echo "containerd of $name does not answer; see $name-containerd.log" >&2; exit 1; }
  sleep 0.2
done
for archive; do
  ctr -a "$socket" -n k8s.io images import "$archive" >>"$logs/$name-images.log" 2>&1 ||
    { echo "$name cannot import $archive; see $name-images.log" >&2; exit 1; }
done
echo "images are there"
keep kubelet "$kubernetes/kubelet" --config="$state/kubelet.yaml" --kubeconfig="$state/kubelet.conf" --hostname-override="$name" --node-ip="$ip" \
  --root-dir="$state/kubelet" --cert-dir="$state/pki" --v=1
wait
