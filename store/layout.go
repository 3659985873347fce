package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"cafs/shard"
	"cafs/store/disk"
)

var (
	// ErrNotStore: the folder holds no block store (no SHARDING file).
	ErrNotStore = errors.New("not a block store")
	// ErrLayout: the store's sharding function is unknown, or not the one asked for.
	ErrLayout = errors.New("sharding function does not fit")
	// ErrResharding: a change of the sharding function was interrupted; [Reshard]
	// finishes it.
	ErrResharding = errors.New("store is between two sharding functions")
)

// Names at the top of a store. flatfs skips folders that begin with a dot,
// except that it empties .temp on every open.
const (
	shardingName = "SHARDING"
	readmeName   = "_README"
	usageName    = "diskUsage.cache"
	stagingName  = ".staging"
	flatfsTemp   = ".temp"
)

const (
	dirPerm  fs.FileMode = 0o755
	filePerm fs.FileMode = 0o644
)

// betweenPrefix begins the SHARDING text of a store that is being resharded.
// flatfs refuses it, as it must: it would not find blocks that have moved.
const betweenPrefix = "/cafs/reshard/v1 "

// readLayout tells the sharding function of the store in root, and whether it
// made the store, when opts say so.
func readLayout(root disk.FS, opts Options) (fn shard.Func, created bool, err error) {
	text, err := readSmall(root, shardingName)
	if notExist(err) {
		if !opts.CreateIfMissing {
			return fn, false, fmt.Errorf("no %s file: %w", shardingName, ErrNotStore)
		}
		fn = opts.Shard
		if fn.IsZero() {
			fn = shard.Default
		}
		return fn, true, createLayout(root, fn)
	}
	if err != nil {
		return fn, false, err
	}
	if strings.HasPrefix(text, betweenPrefix) {
		return fn, false, fmt.Errorf("%s: %w", strings.TrimSpace(text), ErrResharding)
	}
	fn, err = shard.Parse(text)
	if err != nil {
		return fn, false, fmt.Errorf("%w: %w", ErrLayout, err)
	}
	if !opts.Shard.IsZero() && opts.Shard != fn {
		return fn, false, fmt.Errorf("%w: store has %s, asked for %s", ErrLayout, fn, opts.Shard)
	}
	return fn, false, nil
}

// createLayout makes an empty store. SHARDING comes last, whole and durable:
// without it the folder is not a store and may be tried again.
func createLayout(root disk.FS, fn shard.Func) error {
	names, err := root.ReadDir(".")
	if err != nil {
		return err
	}
	for _, n := range names {
		if n.Name != readmeName && !strings.HasPrefix(n.Name, ".") {
			return fmt.Errorf("no %s file, but there is %q: %w", shardingName, n.Name, ErrNotStore)
		}
	}
	return writeLayout(root, fn)
}

// writeLayout makes fn the store's function, durably.
func writeLayout(root disk.FS, fn shard.Func) error {
	if fn == shard.Default {
		if err := writeSmall(root, readmeName, readme, 0o444); err != nil {
			return err
		}
	} else if err := root.Remove(readmeName); err != nil && !notExist(err) {
		return err
	}
	return writeSmall(root, shardingName, fn.String()+"\n", filePerm)
}

// readSmall reads a file of at most 4 KiB.
func readSmall(root disk.FS, name string) (string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, 4096)
	n, err := f.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	return string(buf[:n]), nil
}

// writeSmall replaces a file at once and durably.
func writeSmall(root disk.FS, name, text string, perm fs.FileMode) error {
	temp := ".new-" + name
	if err := root.Remove(temp); err != nil && !notExist(err) {
		return err
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = root.Rename(temp, root, name)
	}
	if err == nil {
		err = root.SyncDir()
	}
	return err
}

// readme is the text that go-ds-flatfs writes beside its default layout; tools
// compare it, so it is theirs to the letter.
const readme = `This is a repository of IPLD objects. Each IPLD object is in a single file,
named <base32 encoding of cid>.data. Where <base32 encoding of cid> is the
"base32" encoding of the CID (as specified in
https://github.com/multiformats/multibase) without the 'B' prefix.
All the object files are placed in a tree of directories, based on a
function of the CID. This is a form of sharding similar to
the objects directory in git repositories. Previously, we used
prefixes, we now use the next-to-last two characters.

    func NextToLast(base32cid string) {
      nextToLastLen := 2
      offset := len(base32cid) - nextToLastLen - 1
      return str[offset : offset+nextToLastLen]
    }

For example, an object with a base58 CIDv1 of

    zb2rhYSxw4ZjuzgCnWSt19Q94ERaeFhu9uSqRgjSdx9bsgM6f

has a base32 CIDv1 of

    BAFKREIA22FLID5AJ2KU7URG47MDLROZIH6YF2KALU2PWEFPVI37YLKRSCA

and will be placed at

    SC/AFKREIA22FLID5AJ2KU7URG47MDLROZIH6YF2KALU2PWEFPVI37YLKRSCA.data

with 'SC' being the last-to-next two characters and the 'B' at the
beginning of the CIDv1 string is the multibase prefix that is not
stored in the filename.
`
