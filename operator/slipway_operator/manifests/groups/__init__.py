"""Replicas of several pods: the LeaderWorkerSet of a revision, in place of its ReplicaSet.

A group is one replica: a leader, which takes requests, and its workers. Its controller is that of LeaderWorkerSet.
"""
