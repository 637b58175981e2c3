#!/bin/bash
# ceph-mini.sh - a throw-away Ceph cluster on 127.0.0.1, for the messenger's conformance test:
# one monitor, one OSD (bluestore on a sparse file, so that it survives being killed), no
# authentication, crc mode, one pool of size 1. Runs as root, without systemd.
#
#   ceph-mini.sh install            # Debian's packages: about 40 s, 220 MB
#   ceph-mini.sh start DIR [PORT]   # prints "ready"; the pool is called "data"
#   ceph-mini.sh kill DIR NAME      # SIGKILL one daemon: mon.a or osd.0
#   ceph-mini.sh revive DIR NAME    # starts it again
#   ceph-mini.sh stop DIR           # ends the daemons recorded in DIR/pids, and only those
set -euo pipefail

die() { echo "ceph-mini: $*" >&2; exit 1; }

if [ "${1:-}" = install ]; then
  export DEBIAN_FRONTEND=noninteractive
  exec apt-get install -y --no-install-recommends ceph-mon ceph-osd ceph-common
fi
[ $# -ge 2 ] || { sed -n '2,11p' "$0"; exit 2; }
command=$1
dir=$(realpath -m "$2")
export CEPH_CONF=$dir/ceph.conf CEPH_ARGS=

spawn() { # NAME: the daemon in the foreground of its own session, its pid recorded
  local name=$1 program=ceph-${1%%.*} id=${1#*.}
  setsid "$program" -c "$CEPH_CONF" -f -i "$id" >>"$dir/log/$name.out" 2>&1 </dev/null &
  local pid=$!
  sed -i "/^$name /d" "$dir/pids"
  echo "$name $pid" >>"$dir/pids"
}

alive() { # PID: a daemon of this very cluster, not another process with a reused number
  grep -qas -e "$CEPH_CONF" "/proc/$1/cmdline"
}

pid_of() { awk -v name="$1" '$1 == name { print $2 }' "$dir/pids"; }

wait_for() { # SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ]; then
      tail -n 20 "$dir"/log/*.out >&2 || true
      die "timed out: $what"
    fi
    sleep 0.1
  done
}

osd_is_up() { timeout 10 ceph -c "$CEPH_CONF" osd stat -f json | grep -q '"num_up_osds":1[,}]'; }

stop() {
  [ -f "$dir/pids" ] || return 0
  local name pid
  while read -r name pid; do
    if alive "$pid"; then kill -TERM "$pid" 2>/dev/null || true; fi
    for _ in $(seq 50); do alive "$pid" || break; sleep 0.1; done
    if alive "$pid"; then kill -KILL "$pid" 2>/dev/null || true; fi
  done < <(sort -r "$dir/pids") # the OSD first
  : >"$dir/pids"
}

configure() { # PORT
  cat >"$CEPH_CONF" <<CONF
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$1]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv4 = true
ms bind ipv6 = false
ms bind msgr1 = false
ms bind msgr2 = true
ms bind port min = $(($1 + 100))
ms bind port max = $(($1 + 199))
ms cluster mode = crc
ms service mode = crc
ms client mode = crc
ms mon cluster mode = crc
ms mon service mode = crc
ms mon client mode = crc
auth cluster required = none
auth service required = none
auth client required = none
keyring = $dir/keyring
run dir = $dir/run
admin socket = $dir/run/\$name.asok
pid file =
log file = $dir/log/\$name.log
log to stderr = false
err to stderr = true
mon cluster log file = $dir/log/cluster.log
crash dir = $dir/run
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail warn = 1
mon data avail crit = 1
mon osd down out interval = 3600
[mon]
mon data = $dir/mon.\$id
mon initial members = a
rocksdb cache size = 67108864
[osd]
osd data = $dir/osd.\$id
osd objectstore = bluestore
bluestore block size = 2147483648
bluestore fsck on mount = false
osd memory target = 939524096
osd op num shards = 2
osd op num threads per shard = 1
osd mclock skip benchmark = true
osd op queue = wpq
[client]
log file =
admin socket =
CONF
}

start() { # PORT
  command -v ceph-mon >/dev/null || die "not installed: run $0 install"
  [ ! -e "$CEPH_CONF" ] || die "$dir is in use"
  mkdir -p "$dir"/{log,run,mon.a,osd.0}
  : >"$dir/pids"
  fsid=$(cat /proc/sys/kernel/random/uuid)
  configure "$1"
  {
    ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
    ceph-authtool "$dir/keyring" --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$1/0]" \
      --set-min-mon-release 16 "$dir/monmap"
    ceph-mon -c "$CEPH_CONF" --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
  } >"$dir/log/setup.out" 2>&1 || { cat "$dir/log/setup.out" >&2; die "setting up the monitor"; }
  spawn mon.a
  wait_for 60 "the monitor" timeout 5 ceph -c "$CEPH_CONF" --connect-timeout 3 mon stat
  uuid=$(cat /proc/sys/kernel/random/uuid)
  truncate -s 2147483648 "$dir/osd.0/block"
  {
    ceph -c "$CEPH_CONF" osd new "$uuid" 0
    ceph-osd -c "$CEPH_CONF" -i 0 --mkfs --osd-uuid "$uuid"
  } >"$dir/log/osd.mkfs.out" 2>&1 || { cat "$dir/log/osd.mkfs.out" >&2; die "setting up the OSD"; }
  spawn osd.0
  wait_for 120 "the OSD" osd_is_up
  ceph -c "$CEPH_CONF" osd pool create data 8 8 replicated >"$dir/log/pool.out" 2>&1
  wait_for 60 "the first write" timeout 20 rados -c "$CEPH_CONF" -p data put .probe /etc/hostname
  timeout 20 rados -c "$CEPH_CONF" -p data rm .probe
  echo "ready"
}

case $command in
start) start "${3:-13300}" ;;
stop) stop; echo "stopped" ;;
kill)
  pid=$(pid_of "$3")
  { [ -n "$pid" ] && alive "$pid"; } || die "$3 does not run"
  kill -KILL "$pid"
  echo "killed $3"
  ;;
revive) spawn "$3"; echo "started $3" ;;
*) die "unknown command $command" ;;
esac
