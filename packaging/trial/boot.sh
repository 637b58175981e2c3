#!/bin/sh
# Boots a systemd in the namespaces that this runs in, on an overlay of this machine's root directory.
# $1 has firn.deb, upgrade.deb and lifecycle.sh, and gets the file "output". All other changes are in memory.
set -e
folder=$1
top=$folder/disk/merged
mount --make-rprivate /
mount -t tmpfs none "$folder/disk"
mkdir "$folder/disk/upper" "$folder/disk/work" "$top"
mount -t overlay -o "lowerdir=/,upperdir=$folder/disk/upper,workdir=$folder/disk/work" none "$top"
cd "$top"
mkdir -p trial
mount --bind "$folder" trial
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -d /sys/fs/cgroup/systemd ]; then
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/unified sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
for place in run tmp var/lib/firn; do
    mkdir -p $place
done
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    touch dev/$node
    mount --bind /dev/$node dev/$node
done
mkdir dev/shm
mount -t tmpfs tmpfs dev/shm
# Nothing of this machine's own services.
rm -rf etc/systemd/system/*.wants var/lib/firn
cat > etc/systemd/system/trial.service <<UNIT
[Unit]
DefaultDependencies=no
After=dbus.socket basic.target
Wants=basic.target
[Service]
Type=oneshot
ExecStart=/bin/sh /trial/lifecycle.sh
StandardOutput=file:/trial/output
StandardError=inherit
ExecStopPost=/bin/sh -c 'systemctl exit \$EXIT_STATUS'
TimeoutStartSec=220
UNIT
exec env -i container=trial PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . \
    /lib/systemd/systemd --log-target=null --unit=trial.service
