//go:build !cafs_unsafe_nosync

package disk

// noSync is false in every program that keeps anything.
const noSync = false
