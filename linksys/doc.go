// Package linksys is IPLD over a block store: files, directories and any other
// linked data, addressed by CID.
//
// A [System] joins a store to go-ipld-prime. [System.LinkSystem] hands out the
// store's own bytes: its readers have a Bytes method, so that the raw and dag-pb
// codecs alias them, and it trusts the store, which has checked them already.
// Loading a leaf of 1 MiB copies nothing.
//
// # Reading
//
// UnixFS is a view on dag-pb blocks, which selectors ask for by "interpret as
// unixfs": a directory is a map of names to links, however it is sharded, and a
// file is bytes, whatever its layout. [System.Resolve], [System.Select] and
// everything that takes a path are traversals of such selectors.
// [System.OpenFile], [System.LookupDir] and [System.ReadDir] are the same view
// for those who know what they want: they resolve a file's leaves one interior
// node at a time, when a read gets there, and a name by the shards on its way.
//
// What is decoded and what is read ahead is kept in one bounded cache. A [File]
// sees from the offsets of its reads who goes through it, and fetches what comes
// next in parallel: hashing, not waiting, is then the limit. Small reads here
// and there leave whole leaves alone and have the store check single pages.
//
// # Whom to believe
//
// Blocks come from anywhere. Their bytes are what their CIDs say; what they mean
// is not to be trusted:
//   - A size is believed only once it was compared with what it describes. A
//     part that is longer or shorter is unixfs.ErrMalformed, never zeros.
//   - A missing name is fs.ErrNotExist. A missing block is store.ErrNotFound,
//     with the CID, and the two never stand for each other. (A traversal takes
//     an error from a directory for a missing name; walks here note it.)
//   - Entries with names no file system can have are hidden, reported to
//     Options.Logger, and not found.
//   - Depth, paths, sections and memory have limits ([ErrBudget]); a subtree that
//     occurs many times is visited once, so that no walk takes longer than the
//     blocks there are, except one that hands out all the bytes.
//
// Zeros are data that need not be read: the CID of a leaf of zeros proves them.
//
// # Writing
//
// Package add makes DAGs of files and trees with the canonical encoder of package
// unixfs; package car takes blocks from elsewhere, through [System.PutVerified],
// and asks [System.Complete] whether they are all. Both put blocks first and sync
// once, at the end, before they return a root.
//
// Lock order: File.mu and preloader.mu before System.mu, cache.mu and that of a
// cidset.Set, of which no two are held together. None is held while a block is
// fetched.
package linksys
