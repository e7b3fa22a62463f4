#!/bin/busybox sh
# The first process of the emulated machine: hands control groups down in each way that a server can meet, and runs the
# tests of limits there. What they say goes to the serial line, where `groups.rs` judges it.
export PATH=/bin
export TMPDIR=/tmp
box=/bin/busybox
$box mount -t proc proc /proc
$box mount -t sysfs sysfs /sys
$box mount -t devtmpfs devices /dev
$box mkdir -p /dev/shm
$box mount -t tmpfs -o mode=1777 shm /dev/shm
$box mount -t cgroup2 groups /sys/fs/cgroup
$box ifconfig lo 127.0.0.1
$box chmod 1777 /tmp
# A limit that only sends a job out to the swap is none, so there is one to go to.
for module in lzo lzo-rle zsmalloc zram; do $box insmod /modules/$module.ko; done
echo 300M > /sys/block/zram0/disksize
$box mkswap /dev/zram0 > /dev/null
$box swapon /dev/zram0
swap=$($box sed -n 's/^SwapTotal: *//p' /proc/meminfo)
echo "machine: $($box uname -r) with the controllers $(cat /sys/fs/cgroup/cgroup.controllers), swap $swap"
cd /sys/fs/cgroup || exit 1
echo '+memory +pids' > cgroup.subtree_control

# Name, who must keep the limits, the group to stand in, a program in front, and the tests.
scene() {
    name=$1 keeper=$2 group=$3 before=$4
    shift 4
    echo "scene $name: $keeper"
    killed=$($box sed -n 's/^oom_kill //p' /proc/vmstat)
    (
        echo 0 > "$group/cgroup.procs" && cd / &&
            WINDLASS_TEST_GROUPS=$keeper exec $before $TESTS --test-threads=1 --show-output "$@"
    )
    status=$?
    echo "killed for memory: $(($($box sed -n 's/^oom_kill //p' /proc/vmstat) - killed))"
    echo "scene $name ended: $status"
}

# As systemd does it with Delegate= and DelegateSubgroup=: the group above is the server's, the server in a leaf of it.
$box mkdir -p handed.service/server
setfattr -n trusted.delegate -v 1 handed.service
# One test has limits of output alone, which need no group.
limits='limits:: groups:: --skip talks_too_much'
scene handed kernel handed.service/server '' $limits reap::

# The same for one who is not root.
$box mkdir -p ada.service/server
setfattr -n user.delegate -v 1 ada.service
$box chown -R ada: ada.service
$box chown root: ada.service/memory.* ada.service/pids.*
scene ada kernel ada.service/server '/bin/setpriv --reuid=1000 --regid=1000 --clear-groups' $limits

# What goes without the kernel is tested wherever these tests run; here it is to be seen that it is what was taken.
without='groups:: takes_too_much_memory_is_killed grows_too_many_processes_is_killed'

# A service without a word about its group: the controllers are there, and processes stand in the group itself.
$box mkdir plain.service
scene plain watched plain.service '' $without

# No group can be made at all.
$box mkdir shut.service
echo 0 > shut.service/cgroup.max.descendants
scene shut none shut.service '' $without

for group in handed.service ada.service plain.service shut.service; do
    echo "groups left in $group: $($box find $group -type d -name 'windlass-*' | $box wc -l)"
done
echo 'machine: over'
$box poweroff -f
