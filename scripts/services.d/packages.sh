# shellcheck shell=bash
# Debian packages: only those whose command is missing, all in one installation.

missing_packages=()

# want COMMAND PACKAGE...
want() {
  local command=$1
  shift
  command -v "$command" >/dev/null || missing_packages+=("$@")
}

install_missing_packages() {
  ((${#missing_packages[@]})) || return 0
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600)
  ((EUID == 0)) || apt=(sudo "${apt[@]}")
  say "installing ${missing_packages[*]}"
  # Standard output stays free for the caller's own.
  "${apt[@]}" update </dev/null >&2
  "${apt[@]}" install -y --no-install-recommends "${missing_packages[@]}" </dev/null >&2
  missing_packages=()
}
