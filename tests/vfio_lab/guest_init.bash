#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PID 1 of the lab's guest: the root is the host's, read-only, under a
# disk of its own. Starts udev, then runs /out/command.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
mount -t tmpfs tmpfs /run
# In memory, but not over /tmp: the checkout may be there.
export TMPDIR=/run/tmp
mkdir -m 1777 "$TMPDIR"
mkdir -p /dev/pts /dev/shm /out /lib/modules
mount -t devpts devpts /dev/pts 2>/dev/null
mount -t tmpfs tmpfs /dev/shm
# The libvirt of this machine may have domains, which its guest has not.
mkdir -p /etc/libvirt/qemu
mount -t tmpfs tmpfs /etc/libvirt/qemu
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,access=any \
    labout /out
[ -e "/lib/modules/$(uname -r)" ] ||
    ln -s /out/kernel/lib/modules/"$(uname -r)" /lib/modules/"$(uname -r)"
ip link set lo up
hostname lab
# As at any boot: drivers are found for what is there already.
/lib/systemd/systemd-udevd --daemon
udevadm trigger --type=subsystems --action=add
udevadm trigger --type=devices --action=add
udevadm settle
# It shows that the guest works (machine.py).
beat=$(</out/beat)
while :; do echo >>/out/beats; sleep "$beat"; done &
bash /out/command >/out/stdout 2>&1
echo $? >/out/rc
sync
echo o >/proc/sysrq-trigger
# Not "sleep": the root is about to go, and PID 1 must not end.
while :; do :; done
