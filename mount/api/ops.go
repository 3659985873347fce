package api

import (
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/add"
)

// Operations. The comment says what goes in and what comes out.
const (
	OpHello    = "hello"      // answers
	OpStatus   = "status"     // -> Status
	OpSync     = "sync"       // everything before it is durable
	OpStop     = "stop"       // StopArg; unmounts, and answers before the daemon has ended
	OpCid      = "cid"        // CidArg -> Root; the object as it is now, durable
	OpAdd      = "add"        // AddArg, one descriptor -> AddEvent …, Added
	OpExport   = "dag.export" // ExportArg, one descriptor to write to -> AddEvent …, car.ExportStats
	OpImport   = "dag.import" // ImportArg, one descriptor to read -> AddEvent …, car.ImportResult
	OpDagSize  = "dag.stat"   // BlockArg -> linksys.DagSize
	OpKeep     = "root.add"   // NamedRoot; remembers content that is there already
	OpRoots    = "root.ls"    // -> []NamedRoot … in several replies
	OpBlockGet = "block.get"  // BlockArg -> body
	OpBlockPut = "block.put"  // BlockArg, body; readable at once, durable after sync
	OpBlockHas = "block.has"  // BlockArg -> bool
	OpBlockLen = "block.len"  // BlockArg -> int64
	OpProfile  = "profile"    // ProfileArg -> body, as runtime/pprof writes it
	OpBlockAll = "block.ls"   // -> []BlockInfo … in several replies
)

// Status describes a daemon and what it serves.
type Status struct {
	PID        int       `json:"pid"`
	Version    string    `json:"version"` // of the program
	Repo       string    `json:"repo"`
	Mountpoint string    `json:"mountpoint"`
	Profile    string    `json:"profile"`
	Shard      string    `json:"shard"`
	Since      time.Time `json:"since"`

	DirtyBytes    int64 `json:"dirty_bytes"`    // of contents, in memory only
	DirtyFiles    int64 `json:"dirty_files"`    // with contents that are not durable
	StagedBytes   int64 `json:"staged_bytes"`   // of contents, on disk and not yet blocks
	UnsealedFiles int64 `json:"unsealed_files"` // waiting to become blocks
	Inodes        int64 `json:"inodes"`         // in memory
	// Messages tells how many of each kind the kernel has sent.
	Messages map[string]uint64 `json:"messages,omitempty"`

	PendingBytes int64 `json:"pending_bytes"` // in blocks that are not durable
	FreeBytes    int64 `json:"free_bytes"`    // what can be written
	TotalBytes   int64 `json:"total_bytes"`   // of the repository's file system

	// HistoryBytes is what blocks take that only kept commits refer to, as of the
	// last collection of garbage, which ended at Collected; zero: none yet.
	HistoryBytes int64     `json:"history_bytes"`
	Collected    time.Time `json:"collected,omitzero"`

	// Failed says why the repository can only be read until the next mount;
	// empty while all is well.
	Failed string `json:"failed,omitempty"`
}

// ProfileArg asks for a profile of the daemon.
type ProfileArg struct {
	Kind string        `json:"kind"`          // cpu, or one that runtime/pprof knows
	For  time.Duration `json:"for,omitempty"` // how long cpu, mutex and block record
}

// StopArg asks for the end of a mount.
type StopArg struct {
	// Detach ends it although it is in use: what is open there fails from now on.
	Detach bool `json:"detach"`
	// Seal commits the tree at the end.
	Seal bool `json:"seal,omitempty"`
}

// CidArg names an object of the tree: by inode number, or by a slash-separated
// path from the root that no symlink is followed for.
type CidArg struct {
	Ino  uint64 `json:"ino,omitempty"`
	Path string `json:"path,omitempty"`
}

// Root is the address of content.
type Root struct {
	Cid   cid.Cid `json:"cid"`
	Size  uint64  `json:"size"`  // bytes of content
	Tsize uint64  `json:"tsize"` // bytes of the DAG, shared blocks counted each time
}

// AddArg says how to import what the descriptor is open on.
type AddArg struct {
	Name          string `json:"name"`              // for the list of roots
	Recursive     bool   `json:"recursive"`         // folders too
	Profile       string `json:"profile,omitempty"` // empty: the repository's
	NoHidden      bool   `json:"no_hidden,omitempty"`
	NoEmptyDirs   bool   `json:"no_empty_dirs,omitempty"`
	PreserveMode  bool   `json:"preserve_mode,omitempty"`
	PreserveMtime bool   `json:"preserve_mtime,omitempty"`
	Stats         bool   `json:"stats,omitempty"`   // count unique and stored bytes
	NoSync        bool   `json:"no_sync,omitempty"` // answer before it is durable
	NoRoot        bool   `json:"no_root,omitempty"` // do not list it as a root
}

// ExportArg says what goes into a CAR.
type ExportArg struct {
	Root cid.Cid `json:"root"`
	linksys.Selection
	Version int `json:"version"`
}

// ImportArg says what becomes of a CAR.
type ImportArg struct {
	Name    string `json:"name"`               // for the list of roots
	NoRoots bool   `json:"no_roots,omitempty"` // blocks only; the roots' DAGs may be incomplete
}

// AddEvent tells how far an import or export is, or what it leaves out.
type AddEvent struct {
	Bytes   int64  `json:"bytes,omitempty"`   // read or written so far
	Skipped string `json:"skipped,omitempty"` // path of what is no file, folder or symlink
}

// Added is the result of an import.
type Added struct {
	Root
	add.Stats
}

// NamedRoot is content the repository knows by name.
type NamedRoot struct {
	Name string    `json:"name"`
	Cid  cid.Cid   `json:"cid"`
	Time time.Time `json:"time"`
}

// BlockArg names a block.
type BlockArg struct {
	Cid cid.Cid `json:"cid"`
}

// BlockInfo is one stored block; its codec is not stored, so Cid is a raw one.
type BlockInfo struct {
	Cid  cid.Cid `json:"cid"`
	Size int64   `json:"size"` // bytes
}
