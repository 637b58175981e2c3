#!/bin/sh
# What an administrator does with the package, each step with what must hold after it. Runs under a systemd
# of its own; the last line is "trial: passed".
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
step() { echo "trial: $1"; }
fail() {
    echo "trial: FAILED: $1"
    systemctl status firn.service --no-pager -l 2>&1 || true
    journalctl -u firn.service --no-pager -n 60 2>&1 || true
    exit 1
}
main_pid() { systemctl show -p MainPID --value firn.service; }
status_of() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$(main_pid)/status"; }
# Waits until another process than $1 serves.
wait_for_another() {
    for _ in $(seq 600); do
        if [ "$(main_pid)" != "$1" ] && [ "$(systemctl is-active firn.service)" = active ]; then return; fi
        sleep 0.1
    done
    fail "no other process than $1 serves"
}
uri='nbd+unix:///demo?socket=/run/firn/nbd.sock'
writes() { qemu-io -f raw -c "write -q -P $1 $2 64k" "$uri" >/dev/null || fail "cannot write at $2"; }
reads() { qemu-io -f raw -c "read -q -P $1 $2 64k" "$uri" 2>&1 | grep -qi 'failed\|error' && fail "another content at $2"; return 0; }

configure() {
    cat >> /etc/firn/firn.toml <<'TOML'
volume = ["demo=64MiB"]
log-size = "64MiB"
cache-size = "64MiB"
TOML
}

step 'install'
dpkg -i /trial/firn.deb 2>&1
systemd-analyze verify firn.service || fail 'the unit has mistakes'
[ "$(systemctl is-active firn.service || true)" = inactive ] || fail 'it started before it was configured'
firn config check /etc/firn/firn.toml
[ "$(stat -c '%a %U:%G' /run/firn)" = '750 root:firn' ] || fail 'tmpfiles did not make /run/firn'
zcat /usr/share/man/man1/firn-attach.1.gz | grep -q TH || fail 'no manual page'

step 'start'
configure
systemctl start firn.service || fail 'it does not start'
[ "$(systemctl show -p StatusText --value firn.service)" = serving ] || fail 'it does not say that it serves'
[ "$(status_of NoNewPrivs)" = 1 ] || fail 'it may gain privileges'
[ "$(status_of Seccomp)" = 2 ] || fail 'no system call is refused'
journalctl -u firn.service --no-pager | grep -q 'out of its reach (Landlock)\|the kernel has no Landlock' \
    || fail 'it reaches all files of its user, and the kernel is not the reason'
# CAP_SYS_ADMIN (21), CAP_SYS_RESOURCE (24), CAP_MKNOD (27), as far as this machine has them.
[ $((0x$(status_of CapBnd) & ~0x9200000)) = 0 ] || fail "capabilities $(status_of CapBnd)"
# What computes in the background is nicer by 10 than what serves.
cat "/proc/$(main_pid)"/task/*/stat | sed -n 's/^[0-9]* (firn-compute[^)]*) //p' | cut -d' ' -f17 | grep -qx 10 \
    || fail 'no thread that computes has a lower priority'
firn volume list
writes 17 0

step 'kill -9: the next one has what was completed'
before=$(main_pid)
kill -9 "$before"
wait_for_another "$before"
reads 17 0

step 'a server that hangs is ended by its watchdog'
mkdir -p /run/systemd/system/firn.service.d
printf '[Service]\nWatchdogSec=2s\n' > /run/systemd/system/firn.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart firn.service
before=$(main_pid)
# It lives longer than its time as long as it says that it lives.
sleep 4
[ "$(main_pid)" = "$before" ] || fail 'its watchdog ended a server that lives'
kill -STOP "$before"
wait_for_another "$before"
rm -r /run/systemd/system/firn.service.d
systemctl daemon-reload
reads 17 0

step 'reload: another program in the same process, whose clients stay connected'
before=$(main_pid)
mkfifo /tmp/client
qemu-io -f raw "$uri" < /tmp/client > /tmp/client.said 2>&1 &
client=$!
exec 3> /tmp/client
echo 'write -q -P 21 256k 64k' >&3
for _ in 1 2; do
    systemctl reload firn.service || fail 'it cannot be reloaded'
    [ "$(main_pid)" = "$before" ] || fail 'it is another process'
    [ "$(systemctl is-active firn.service)" = active ] || fail 'it is not active after a reload'
    [ "$(systemctl show -p StatusText --value firn.service)" = serving ] || fail 'it does not say that it serves'
    firn volume show demo | grep -q . || fail 'the API does not answer after a reload'
done
echo 'read -q -P 21 256k 64k' >&3
echo 'write -q -P 22 320k 64k' >&3
exec 3>&-
wait "$client" || fail 'the client of a server that was reloaded ended with an error'
! grep -qi 'failed\|error' /tmp/client.said || fail "the client saw: $(cat /tmp/client.said)"
reads 21 256k
reads 22 320k

step 'a reload that cannot be fails, says why, and the server goes on'
cp /etc/firn/firn.toml /tmp/firn.toml
sed -i 's|^store = .*|store = "file:/var/lib/firn/another"|' /etc/firn/firn.toml
grep -q another /etc/firn/firn.toml || echo 'store = "file:/var/lib/firn/another"' >> /etc/firn/firn.toml
! systemctl reload firn.service || fail 'it was reloaded with another store'
journalctl -u firn.service --no-pager | grep -q 'cannot take over.*--store' || fail 'nothing says why'
cp /tmp/firn.toml /etc/firn/firn.toml
[ "$(main_pid)" = "$before" ] || fail 'it is another process'
[ "$(systemctl is-active firn.service)" = active ] || fail 'it is not active after a reload that failed'
reads 21 256k

step 'an upgrade that takes longer than the watchdog waits is not ended by it'
mkdir -p /run/systemd/system/firn.service.d
printf '[Service]\nWatchdogSec=2s\nEnvironment=FIRN_HANDOVER_AT=recovered=pause\n' \
    > /run/systemd/system/firn.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart firn.service
before=$(main_pid)
# What is shipped does not know the switch, and is upgraded at once.
firn upgrade --timeout 6s > /tmp/upgraded 2>&1 || grep -q 'did not serve within' /tmp/upgraded || fail "$(cat /tmp/upgraded)"
sleep 3
[ "$(main_pid)" = "$before" ] || fail 'its watchdog ended a server that gave its place away'
[ "$(systemctl show -p NRestarts --value firn.service)" = 0 ] || fail 'it was started anew'
rm -r /run/systemd/system/firn.service.d
systemctl daemon-reload
systemctl restart firn.service
reads 21 256k

step 'upgrade: another program in the same process, the same contents, the configuration kept'
writes 18 64k
before=$(main_pid)
dpkg -i /trial/upgrade.deb 2>&1
[ "$(main_pid)" = "$before" ] || fail 'the upgrade of the package made it another process'
case "$(readlink "/proc/$before/exe")" in
    *deleted*) fail 'the process has the program of before the upgrade' ;;
esac
[ "$(systemctl is-active firn.service)" = active ] || fail 'it is not active after the upgrade of the package'
grep -q '^volume = \["demo=64MiB"\]' /etc/firn/firn.toml || fail 'the configuration is lost'
reads 17 0
reads 18 64k

step 'without root and capabilities: NBD alone'
systemctl stop firn.service
install -D -m 644 /usr/share/doc/firn/nbd-only.conf /etc/systemd/system/firn.service.d/nbd-only.conf
sed 's/ root firn / firn firn /' /usr/lib/tmpfiles.d/firn.conf > /etc/tmpfiles.d/firn.conf
chown -R firn: /var/lib/firn /run/firn
systemctl daemon-reload
# What a boot does.
systemd-tmpfiles --create firn.conf
[ "$(stat -c '%a %U:%G' /run/firn)" = '750 firn:firn' ] || fail 'tmpfiles gave /run/firn to another user'
systemctl start firn.service || fail 'it does not start without root'
[ "$(status_of Uid | cut -f1)" = "$(id -u firn)" ] || fail 'it runs as another user'
[ "$(status_of CapEff)" = 0000000000000000 ] || fail "capabilities $(status_of CapEff)"
reads 18 64k
writes 19 128k
reads 19 128k
systemctl stop firn.service
rm -r /etc/systemd/system/firn.service.d /etc/tmpfiles.d/firn.conf
systemctl daemon-reload

step 'where io_uring is refused, epoll serves'
mkdir -p /run/systemd/system/firn.service.d
printf '[Service]\nSystemCallFilter=~io_uring_setup\n' > /run/systemd/system/firn.service.d/no-ring.conf
systemctl daemon-reload
chown -R root:firn /var/lib/firn /run/firn
systemctl start firn.service || fail 'it does not start without io_uring'
reads 19 128k
rm -r /run/systemd/system/firn.service.d
systemctl daemon-reload
systemctl restart firn.service

# Its newest write is in its index rings alone when the package goes.
printf '[Service]\nRestart=no\n' > /run/no-restart.conf
install -D -m 644 /run/no-restart.conf /run/systemd/system/firn.service.d/no-restart.conf
systemctl daemon-reload
writes 20 192k
kill -9 "$(main_pid)"
for _ in $(seq 100); do [ "$(systemctl is-active firn.service)" = failed ] && break; sleep 0.1; done
rm -r /run/systemd/system/firn.service.d
systemctl daemon-reload

step 'remove: the contents and the configuration stay'
dpkg -r firn 2>&1
[ ! -e /usr/bin/firn ] && [ -e /etc/firn/firn.toml ] && [ -e /var/lib/firn/cache/log ] || fail 'remove'
! systemctl is-active --quiet firn.service || fail 'it still runs'

step 'purge: the configuration goes, what may be the only copy stays'
dpkg -P firn 2>&1
[ ! -e /etc/firn ] && [ ! -e /etc/default/firn ] || fail 'purge leaves files'
[ -z "$(find /run/firn -maxdepth 1 -type s)" ] || fail 'purge leaves sockets'
[ -e /var/lib/firn/cache/log ] || fail 'purge removed the log'
[ -n "$(find /run/firn -maxdepth 1 -name 'firn-rings-*')" ] || fail 'purge removed the index rings'
[ -z "$(dpkg-query -W firn 2>/dev/null)" ] || fail 'dpkg still knows it'

step 'install again: what was completed before the kill is there'
dpkg -i /trial/firn.deb 2>&1
configure
systemctl start firn.service || fail 'it does not start over what a purge left'
reads 17 0
reads 20 192k
systemctl stop firn.service
dpkg -P firn 2>&1
step 'passed'
