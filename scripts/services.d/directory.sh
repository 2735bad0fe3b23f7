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
  [[ $first != standard ]] || {
    standard_port_of "$1"
    return
  }
  case $1 in
    postgres) echo "$first" ;;
    mariadb) echo $((first + 1)) ;;
    postgres-replica) echo $((first + 2)) ;;
    mariadb-replica) echo $((first + 3)) ;;
    namesrv) echo $((first + 4)) ;;
    pgbouncer) echo $((first + 5)) ;;
    # A broker listens on two more ports: its own less 2, and its own plus 1.
    broker-a) echo $((first + 10)) ;;
    broker-b) echo $((first + 20)) ;;
    *) die "no such service: $1" ;;
  esac
}

# The servers' usual ports, for programs that cannot be told others.
standard_port_of() {
  case $1 in
    postgres) echo 5432 ;;
    mariadb) echo 3306 ;;
    postgres-replica) echo 5433 ;;
    mariadb-replica) echo 3307 ;;
    namesrv) echo 9876 ;;
    pgbouncer) echo 6432 ;;
    broker-a) echo 10911 ;;
    broker-b) echo 10921 ;;
    *) die "no such service: $1" ;;
  esac
}

claim_standard_ports() {
  local port
  for port in 5432 3306 9876 10909 10911 10912; do
    ! answers "$port" || die "port $port is taken, and ROCKETMQ_TX_STANDARD_PORTS asks for it: stop its server"
  done
  dir=/tmp/rocketmq-tx-standard
  mkdir "$dir" 2>/dev/null || die "$dir exists: another run has the standard ports, or one that was killed left it behind"
  chmod 755 "$dir"
}

claim_directory() {
  local attempt
  if [[ -n ${ROCKETMQ_TX_STANDARD_PORTS:-} ]]; then
    claim_standard_ports
    return
  fi
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
