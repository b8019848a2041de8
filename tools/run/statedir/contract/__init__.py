"""The files that launcher, backend and workers share: plans, outcomes, liveness, progress.

The processes of one job may be on several hosts. This is what they count on, and what they do not.

- One folder that all of them see under one path, of a file system on which renames are atomic, and POSIX
  locks, ``flock`` and hard links work between hosts: NFS 4, Lustre with ``flock``, GPFS, CephFS.
- A network on which the workers reach each other at the addresses of the plan. No name is looked up. The
  launcher needs the folder only: it may be on another network.
- No process table: the folder says who lives (liveness.py), and only a backend knows process ids.
- One torchrun for each worker of an elastic job, one a node for other jobs.
- No common clock. What one host writes for others holds durations. Times of files are compared with each
  other only, for one server has set them (heartbeat.py).
- Locks may outlive their holders, where a file server waits for a dead host. Then the heartbeat decides.
- A host may remember for up to a minute what a folder held, or what a file was like (NFS, unless it is
  mounted with ``lookupcache=positive`` or ``noac``). So a worker that waits for a file asks the server again
  and again (``refresh_folder`` in folders.py); a reader opens the file. A launcher does not ask: on NFS it
  may learn a minute late of files that are new, and at once of those that take another one's place.
- A file that is removed while another host reads it may stay there under another name (``.nfs…``), and its
  folder with it. Folders that are left are removed with the attempt.
"""
