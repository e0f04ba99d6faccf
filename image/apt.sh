# Functions that name an architecture's tools, and fetch its packages from this machine's Debian release. They need no root, and
# install nothing but missing tools. image/build and image/cross source this file, and define `die` and `say`.
#
# Packages come from DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR. apt-get checks their signatures with Debian's keys.
# shellcheck shell=bash
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# shellcheck source=/dev/null
. /etc/os-release
[ "${ID:-}" = debian ] && [ -n "${VERSION_CODENAME:-}" ] || die "this is no Debian release: build in one, the image takes its packages"

# Sets `triple` (Rust's target) and `prefix` (of the C tools) for an architecture, if image/architectures lists it.
target_of() { # architecture
  grep -qx "$1" "$(dirname "${BASH_SOURCE[0]}")/architectures" || die "no architecture '$1' in image/architectures"
  case $1 in
    amd64) prefix=x86_64-linux-gnu ;;
    arm64) prefix=aarch64-linux-gnu ;;
    *) die "image/apt.sh has no names of the tools for $1" ;;
  esac
  triple=${prefix/-linux/-unknown-linux}
}

# Installs the packages that this machine lacks. Arguments: COMMAND:PACKAGE or FILE:PACKAGE.
need() {
  local pair missing=() as_root=()
  for pair; do
    command -v "${pair%%:*}" >/dev/null || [ -e "${pair%%:*}" ] || missing+=("${pair#*:}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  say "installing with apt-get: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Prepares a directory with package lists for one architecture. Later calls of apt-get use this directory (APT_CONFIG).
apt_for() { # folder, architecture
  local apt=$1 arch=$2 suite
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/none/partial"
  apt=$(cd "$apt" && pwd)
  : >"$apt/status"
  mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
  security=${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security}
  for suite in "$mirror $VERSION_CODENAME" "$mirror $VERSION_CODENAME-updates" "$security $VERSION_CODENAME-security"; do
    echo "deb [arch=$arch signed-by=$keyring] $suite main"
  done >"$apt/sources.list"
  cat >"$apt/apt.conf" <<CONF
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt";
Dir::Cache::archives "$apt/archives";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "$arch";
APT::Architectures "$arch";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
  export APT_CONFIG=$apt/apt.conf
  say "packages of Debian $VERSION_CODENAME for $arch from $mirror"
  apt-get -qq update || die "cannot read the package lists; set DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR to mirrors within reach"
}

# Fetches packages with their dependencies, and further packages without dependencies. Prints only the files of these
# packages.
fetch_packages() { # architecture's folder, packages, packages without dependencies
  local apt file wanted files=()
  apt=$(cd "$1" && pwd)
  # shellcheck disable=SC2086
  wanted=$(
    [ -z "$2" ] || apt-get -qq --print-uris -o "Dir::Cache::archives=$apt/none" install $2
    [ -z "$3" ] || apt-get -qq --print-uris download $3
  ) || die "apt-get does not find $2 $3"
  # shellcheck disable=SC2086
  [ -z "$2" ] || apt-get -qq -y --download-only install $2 >/dev/null
  # shellcheck disable=SC2086
  [ -z "$3" ] || (cd "$apt/archives" && apt-get -qq download $3)
  while read -r file; do
    # `apt-get download` encodes a file's name (`%3a`) as the cache does.
    [ -e "$apt/archives/$file" ] || die "apt-get did not leave $file"
    files+=("$apt/archives/$file")
  done < <(cut -d' ' -f2 <<<"$wanted" | sort -u)
  printf '%s\n' "${files[@]}"
}
