# What Perl programs do with threads, processes, sockets and files; prints only what is the same each time.
use strict;
use warnings;
use threads;
use threads::shared;
use Digest::SHA qw(sha256_hex);
use File::Temp qw(tempdir);
use IO::Select;
use IPC::Open3;
use POSIX ();
use Socket;
use Time::HiRes qw(ualarm);

my $count :shared = 0;
my @threads = map {
    threads->create(sub {
        for (1 .. 500) {
            lock($count);
            $count++;
        }
    })
} 1 .. 8;
$_->join for @threads;
print "threads $count\n";

socketpair(my $here, my $there, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!";
my @children;
for my $n (0 .. 7) {
    my $pid = fork() // die "fork: $!";
    if (!$pid) {
        syswrite($there, pack('N', $n * $n));
        POSIX::_exit($n);
    }
    push @children, $pid;
}
close $there;
my @statuses = map { waitpid($_, 0); $? >> 8 } @children;
my $sum = 0;
$sum += $_ for unpack('N*', do { local $/; <$here> });
print "fork @statuses $sum\n";

my $directory = tempdir(CLEANUP => 1);
for my $n (0 .. 99) {
    open(my $file, '>', "$directory/file$n") or die "open: $!";
    print $file "contents $n";
    close $file;
}
opendir(my $listing, $directory) or die "opendir: $!";
my @names = sort grep { /^file/ } readdir $listing;
print 'files ', sha256_hex(join '', map { local (@ARGV, $/) = "$directory/$_"; <> } @names), "\n";

my $pid = open3(my $in, my $out, undef, 'sort', '-n');
print $in join("\n", reverse 1 .. 1000);
close $in;
my $sorted = do { local $/; <$out> };
waitpid($pid, 0);
print 'process ', sha256_hex($sorted), ' ', $? >> 8, "\n";

my $rang = 0;
local $SIG{ALRM} = sub { $rang++ };
ualarm(20_000, 20_000);
select(undef, undef, undef, 0.05) while $rang < 5;
ualarm(0);
print "timer rang\n";

my @found = `perldoc -V 2>&1; perl -MConfig -e 'print \$Config{useithreads}'`;
print 'child ', $found[-1], "\n";
