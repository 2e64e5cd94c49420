# Rows by HTTP, from four processes that accept on one socket.
use strict;
use warnings;
use IO::Socket::INET;

my @rows = map { "row $_" } 0 .. 19999;
my $server = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => 8080, Listen => 64, ReuseAddr => 1) or die "listen: $!";

sub serve {
    while (my $client = $server->accept) {
        my $n;
        while (my $line = <$client>) {
            $n = $1 if $line =~ m{^GET /row/(\d+) };
            last if $line =~ /^\r?\n$/;
        }
        my @garbage = map { "garbage $_" } 1 .. 2000;
        my $body = defined $n ? $rows[$n] : '';
        my $status = $body ne '' ? '200 OK' : '404 Not Found';
        print $client "HTTP/1.1 $status\r\nContent-Length: " . length($body) . "\r\nConnection: close\r\n\r\n$body";
        close $client;
    }
}

for (1 .. 3) {
    my $pid = fork() // die "fork: $!";
    serve() if $pid == 0;
}
serve();
