#!/bin/sh
# Boots systemd as process 1 of namespaces of its own, with the units of a directory and no others, beside this machine's.
#
#   machine.sh DIRECTORY CGROUP    DIRECTORY has units/ and an empty mount/; CGROUP is made, and not removed
#
# What it mounts and writes is seen by nobody else: /etc and /usr/local/bin are written to in memory.
set -eu
directory=$1 cgroup=$2

if [ "${3:-}" != inside ]; then
    mkdir "$cgroup"
    echo $$ > "$cgroup/cgroup.procs"
    exec unshare --pid --fork --kill-child --mount --cgroup --ipc --uts sh "$0" "$directory" "$cgroup" inside
fi

mount --make-rprivate /
memory=$directory/mount
mount -t tmpfs -o mode=0755 tmpfs "$memory"
mkdir "$memory/etc" "$memory/work" "$memory/bin"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$memory/etc,workdir=$memory/work" /etc
mount --bind "$memory/bin" /usr/local/bin
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t proc proc /proc
mount -t cgroup2 cgroup2 /sys/fs/cgroup
grep -q ^playhouse: /etc/passwd || echo 'playhouse:x:64999:64999::/nonexistent:/usr/sbin/nologin' >> /etc/passwd
grep -q ^playhouse: /etc/group || echo 'playhouse:x:64999:' >> /etc/group
mkdir -p /etc/playhouse

systemd=/usr/lib/systemd/systemd
[ -x "$systemd" ] || systemd=/lib/systemd/systemd
exec env -i container=playhouse-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SYSTEMD_UNIT_PATH="$directory/units" \
    "$systemd" --system --unit=multi-user.target --log-target=console --show-status=0
