// Package unixfs turns files, directories and symbolic links into UnixFS DAGs,
// edits such DAGs, and decodes anybody's. It is a set of pure functions: bytes
// and blocks in, blocks out, no files, no network, no state but a memo of zeros.
// For the same content, it gives the CID that "ipfs add" prints.
//
// # UnixFS in a page
//
// The rules are those of the UnixFS and dag-pb specifications
// (https://specs.ipfs.tech/unixfs/, https://ipld.io/specs/codecs/dag-pb/spec/),
// of IPIP-499 (profiles), and, where these are silent, of what Kubo 0.44 and
// boxo 0.43 do. testdata/cids.tsv has CIDs from Kubo at every threshold.
//
// A block is bytes with a CID: a multihash of them and a codec. Two codecs
// occur. "raw" is bare content. "dag-pb" is a protobuf message of links (CID,
// name, Tsize) and one data field; in UnixFS that field is a second message,
// Data, with a type, inline content, sizes, and possibly mode and mtime. dag-pb
// has one canonical form: links before data, sorted by name, every field there
// even if empty. Tsize, the sum of block lengths below, takes part in the CID
// like everything else, so it has to be right.
//
// A file is cut into chunks, each a leaf: a raw block, or with RawLeaves off a
// dag-pb node of type File around the bytes (the type Raw, made for that, was
// never used by Kubo). A file of one chunk is that leaf; an empty file is the
// leaf of no bytes. More leaves get interior nodes of up to MaxLinks children,
// which carry the content bytes below each child and in total; names are empty.
// The tree is balanced: all leaves are equally deep, nodes are filled from the
// left, and a node on the right edge is kept even when it has a single child.
// So the place of a chunk says where it is in the tree, and two files of a
// common prefix share every full subtree of it.
//
// A symbolic link is a node of type Symlink with its target as inline content.
//
// A directory is one node of type Directory with a link per entry, as long as
// it is small. Small is what [Profile].DirSize says: in the profile of 2025 the
// exact length of that node, in that of 2015 the lengths of names and CIDs. One
// byte above DirLimit it is a HAMT: a tree of nodes of type HAMTShard, each with
// Fanout slots, in which an entry is found by the bits of its name's hash
// (murmur3-x64-64, most significant first, log2(Fanout) per level). A slot is
// empty, holds one entry, or leads to a node for the next level, and a node
// below the root always holds two entries or more. So the tree is a function of
// the set of entries, and the bits of the hash bound its depth.
//
// # Profiles
//
// A [Profile] is all that the CID depends on beside the content. There are two
// named ones, [V1_2025] and [V0_2015]; any field may be changed, and
// [ParseProfile] reads both in one string. CID version 0 only exists for dag-pb
// and sha2-256: raw leaves below a root of version 0 have version 1.
//
// # Building
//
// [Profile.BuildFile] and [Profile.BuildDir] emit blocks, children first, as they
// come. [Builder] adds workers, mode and mtime. A file is built in one pass with
// memory for a few chunks; a directory needs its entries in memory.
//
// # Editing
//
// [Profile.EditFile] and [Profile.EditDir] change a DAG without reading it: k
// changes load and write k paths from the root, and the result is, block for
// block, what building from the final content gives. A range of equal chunks is
// one [Run], and a subtree of equal leaves is encoded once per level, so that
// 8 EiB of zeros take a dozen blocks. This works for bases of the same profile;
// others answer [ErrForeign] as far as they are looked at.
//
// # Reading what others made
//
// [DecodeNode] takes every form that is legal: links before or after the data,
// trickle layout, inline content beside links, CIDs of any version and hash,
// old type Raw, packed block sizes. [Find] and [List] walk directories. They hold
// against hostile blocks: work and memory are bounded by the bytes given in,
// sizes must add up, an entry of a HAMT must be where its hash says (which also
// leaves no way to make a walk longer than its entries), and names that no file
// system can have are reported one by one. Whether bytes match a CID is checked
// before they get here, by whoever loads them.
//
// # What is ours
//
// A directory edited through Kubo's MFS can depend on its history (one that a long
// name pushed past the limit stays sharded when it then loses short ones); here
// sharding depends on the entries alone, as in a fresh "ipfs add".
//
// Two names of one hash do not occur, but can be made, and Kubo refuses to build
// a HAMT of them ("sharded directory too deep"). Here the bits of a hash that is
// used up are followed by those of the name's sha2-256, so that any set of names
// is a directory. Kubo lists, copies and pins that, and finds all names but those.
//
// A directory that would be too long for a block is sharded, whatever the profile
// says. Kubo makes a block that it can give to nobody.
//
// cafs keeps mode, mtime and the rest of an inode out of content DAGs; [Stat]
// exists to read others' and to import like Kubo. Names are bytes, not UTF-8, as
// in Linux.
package unixfs
