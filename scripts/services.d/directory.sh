# shellcheck shell=bash
# The directory of one run, and the ports that come with it.

# Each run owns a block of ports, and the directory's name carries its first one: to create the directory is to claim the block.
# Hence always /tmp: all users of the machine claim in the same place, and the database servers' own users can enter it.
# The blocks lie below the range from which the kernel takes ports for outgoing connections.
first_port=20000
ports_per_run=24
blocks=500

port_of() {
  local first=${dir##*-}
  case $1 in
    postgres) echo "$first" ;;
    mariadb) echo $((first + 1)) ;;
    postgres-replica) echo $((first + 2)) ;;
    mariadb-replica) echo $((first + 3)) ;;
    namesrv) echo $((first + 4)) ;;
    # A broker listens on two more ports: its own less 2, and its own plus 1.
    broker-a) echo $((first + 10)) ;;
    broker-b) echo $((first + 20)) ;;
    *) die "no such service: $1" ;;
  esac
}

claim_directory() {
  local attempt
  for ((attempt = 0; attempt < 100; attempt++)); do
    dir=/tmp/rocketmq-tx-$((first_port + ports_per_run * (RANDOM % blocks)))
    if mkdir "$dir" 2>/dev/null; then
      chmod 755 "$dir"
      ports_are_free && return
      rmdir "$dir"
    fi
    dir=
  done
  die "no block of free ports found"
}

ports_are_free() {
  local port first=${dir##*-}
  for ((port = first; port < first + ports_per_run; port++)); do
    ! answers "$port" || return 1
  done
}

# answers PORT: something accepts connections there.
answers() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
