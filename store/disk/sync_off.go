//go:build cafs_unsafe_nosync

package disk

// noSync makes every sync a lie: a program built with this tag loses data in a
// power cut. The tests of power cuts use it to show that they would notice.
const noSync = true
